"""Attribution patching: the effects of a sweep, estimated by gradients."""
