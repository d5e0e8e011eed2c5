"""Metrics of an open store, for Prometheus; needs the extra `metrics`.

prometheus.py a collector, which reads them when it is scraped
table.py      all of them, for Prometheus and OpenTelemetry
"""

from __future__ import annotations

from timerstore.metrics.prometheus import StatsCollector, register

__all__ = ["StatsCollector", "register"]
