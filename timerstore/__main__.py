"""`python -m timerstore` is the command `timerstore`, also where its folder is not in PATH."""

from timerstore.cli import main

if __name__ == "__main__":
    main()
