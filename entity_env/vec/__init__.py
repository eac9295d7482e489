"""Many environments that step together: batches of observations, and the way back."""
