"""One forward pass: its plan, its frame, hooks, rules and conditions; and passes that many sequences share."""
