# 1 = installed, 2 = upgraded.
/usr/lib/backstop/package setup
if [ "$1" -gt 1 ]; then
    /usr/lib/backstop/package upgraded
fi
