"""The aiohttp shell: routes, error bodies, health."""
