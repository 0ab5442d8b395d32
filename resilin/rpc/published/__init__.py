"""Publish weights: many workers read whole versions of a state dict that one worker makes."""
