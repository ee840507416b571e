"""AIBrix's queue simulator: patterns arrive, consumers serve within a capacity, policies compared.

    results = run_experiment(
        Experiment(setup=SETUPS["multi"], policies=all_policies(), seeds=20, amount=RequestCount(4_000))
    )

`model` has patterns, consumers, Little's law and the document's set-ups, `load` the requests and how much
they ask for, `waiting` the policies and queues, `dispatch` the consumers, push and pull, `experiment` runs,
their figures and comparisons. Pure: generators are arguments, or made from a seed that is one.
"""
