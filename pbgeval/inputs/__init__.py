"""`EvalConfig` -> opened data and plain arguments for passes: where configuration meets storage and scoring."""
