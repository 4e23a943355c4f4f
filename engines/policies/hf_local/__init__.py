"""The policy `hf:`: a model in this process, whose weights can be trained; needs extra `grpo`."""
