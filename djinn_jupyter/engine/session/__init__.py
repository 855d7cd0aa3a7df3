"""One line of work: its states, history and stops, its runs, and its reports."""
