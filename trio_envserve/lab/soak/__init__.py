"""The soak: real processes under real faults for minutes, and what they give back."""
