"""`python -m workers`: a supervisor with settings from the environment."""

import sys

from taskgate import settings
from workers import supervisor


def main() -> int:
    try:
        return supervisor.run(settings.load())
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
