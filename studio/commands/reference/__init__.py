"""Commands that say what there is: presets, settings, versions, the manual, completion."""
