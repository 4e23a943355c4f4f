"""`studio compare`: runs, evaluations and other programs' logs, paired by problem. Only reads."""
