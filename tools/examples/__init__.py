"""Services that form their batches by the agent's window: with FastAPI, with Flask, and with a plain socket."""
