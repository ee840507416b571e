"""The `headway` command: a verb is found in the module of its name, and only this package prints.

Exit codes other than 0:

    1    the reader of our output left; of `status --check`: somebody should look
    2    wrong input, with one line on stderr
    3    what was tried failed in every case, with one line on stderr
    130  interrupted
    143  ended by SIGTERM
"""

READER_GONE = 1
WRONG_INPUT = 2
ALL_FAILED = 3
INTERRUPTED = 130
