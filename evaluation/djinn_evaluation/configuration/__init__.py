"""The configuration of an experiment: typed sections, shipped files, one sentence for each mistake."""
