"""`python -m remat_codegen`: the command line."""

from remat_codegen.cli.main import main

if __name__ == "__main__":
    main()
