"""An evaluation: settings, plan, batch, measure."""
