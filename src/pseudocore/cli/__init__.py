"""The command line: one file per verb. Only here is anything printed."""
