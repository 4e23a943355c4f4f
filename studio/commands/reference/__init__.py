"""Commands that say what there is: presets, settings, versions, and completion in a shell."""
