"""Ground floor of the small HTTP processes: errors, server, client, pauses, settings, and how a process ends."""
