#!/bin/sh
# One target group of addresses, with the three client nodes in it.
set -eu
until aws elbv2 describe-target-groups >/dev/null 2>&1; do sleep 1; done
if [ ! -s /shared/target-group.arn ]; then
    vpc=$(aws ec2 create-vpc --cidr-block 172.28.0.0/24 --query Vpc.VpcId --output text)
    arn=$(aws elbv2 create-target-group --name es-clients --protocol HTTP --port 9200 --vpc-id "$vpc" --target-type ip \
        --query 'TargetGroups[0].TargetGroupArn' --output text)
    aws elbv2 register-targets --target-group-arn "$arn" \
        --targets Id=172.28.0.11,Port=9200 Id=172.28.0.12,Port=9200 Id=172.28.0.13,Port=9200
    echo "$arn" > /shared/target-group.arn
fi
