"""The command line: one file per verb or group of verbs. Only here is anything printed."""
