"""What a request would take at each replica: forecasts, their corrections, learning from outcomes."""
