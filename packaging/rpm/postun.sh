if [ "$1" -eq 0 ] && [ -d /var/lib/backstop ]; then
    echo "backstop: kept: /var/lib/backstop /var/lib/backstop-jobs (what this node did, pages that wait)"
fi
