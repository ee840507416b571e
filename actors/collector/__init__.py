"""From metrics to measured intervals: scrapes and PromQL, presets of metric names, health."""
