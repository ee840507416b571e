"""What the Interpolator actor keeps beside the profile; no Ray."""
