"""The client library: publish, subscribe, deploy; finds streams again wherever they go."""
