"""`python -m pseudocore` is `pseudocore`."""

from pseudocore.cli.main import main

main()
