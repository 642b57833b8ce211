#!/bin/sh
# Fills in what differs between the three agents, then becomes the agent.
set -eu
until [ -s /shared/target-group.arn ]; do sleep 1; done
sed -e "s|@ARN@|$(cat /shared/target-group.arn)|" -e "s|@NODE@|$NODE|" -e "s|@INSTANCE@|$INSTANCE|" -e "s|@ADDRESS@|$ADDRESS|" \
    /etc/backstop/backstop.toml.in > /etc/backstop/backstop.toml
exec backstop agent
