"""Tests of the asyncio face."""
