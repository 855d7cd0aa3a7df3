"""Attribution patching: what a sweep would find, estimated from gradients."""
