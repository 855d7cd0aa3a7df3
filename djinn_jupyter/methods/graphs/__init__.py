"""Attribution graphs: which features caused which, over transcoders."""
