"""One session: its states, history and stops, its runs, and its reports."""
