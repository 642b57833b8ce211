# 0 = removed, 1 = upgraded.
if [ "$1" -eq 0 ]; then
    /usr/lib/backstop/package leaving
fi
