"""Offline studies beside the control plane: tools for planning questions, which most readers can skip.

    estimator               profiles of engines that nobody has measured yet
    recommend               which engine, mode, chunk size, policy and fleet serve a trace at the least cost
    queue_simulator         routing and queueing rules compared on a queueing model

Each is a verb (`verbs`, in `commands`) that the command line finds by an entry point. A study may import all
of Headway; nothing imports a study. So nothing here runs in a live system.
"""
