"""One model split among the processes of several devices, and decoding by CUDA graphs."""
