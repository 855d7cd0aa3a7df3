"""What an experiment is asked for: typed sections, files that ship, one sentence for each mistake."""
