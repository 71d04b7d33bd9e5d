"""Other systems' own ways to call an evaluation: a line of import changes, the figures are ours."""
