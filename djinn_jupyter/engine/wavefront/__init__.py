"""Many lines in one pass, through the model's own layers: rows that join when their layer comes. Knows no session."""
