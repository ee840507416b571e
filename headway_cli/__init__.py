"""The `headway` command: a verb is found in the module of its name, and only this package prints.

Exit codes other than 0:

    1    the reader of our output left
    2    wrong input, with one line on stderr
    130  interrupted
    143  ended by SIGTERM
"""

READER_GONE = 1
WRONG_INPUT = 2
INTERRUPTED = 130
