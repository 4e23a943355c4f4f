"""GRPO: learning in the weights, in the same loop as learning in words."""
