"""vLLM behind the engine protocol. Nothing here imports vLLM before an engine is made.

arguments   settings -> arguments of AsyncEngineArgs, and the check of their names
checks      what can be said of a model and the installation before anything is loaded
environment what vLLM and NIXL read from environment variables: the side channel, threads
sampling    a request -> sampling parameters
streams     the requests that are here, by the id that callers use
stats       vLLM's statistics -> EngineStats
engine      VllmEngine, all of it together
tiny        a random model of some megabytes, for tests and the example without a GPU
"""
