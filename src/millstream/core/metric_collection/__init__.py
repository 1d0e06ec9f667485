"""Figures that parts of a program report: the hook they call, what collects them, and the text of Prometheus."""
