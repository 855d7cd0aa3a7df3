"""Why a head attends: the contributions of earlier parts of the model to one attention score."""
