"""How long tests wait for what other processes do: long enough for a slow and busy machine.

Only a test that hangs waits so long; none asserts on time.
"""

PATIENCE = 600.0  # seconds
