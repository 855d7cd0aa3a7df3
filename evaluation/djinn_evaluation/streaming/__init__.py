"""Models larger than the device: the ring beside other ways of streaming, against what is possible; its logits."""
