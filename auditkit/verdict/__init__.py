"""Policies, findings, audits, and checks of what an audit left behind."""
