# Keeps the programs of a control plane that the tests of a run share, and ends them with the run, or when nobody has used
# them for a while. They die with this process, however it ends.
# usage: sh keeper.sh FOLDER RUN, RUN being the process of the run; FOLDER/run has a script for each program.
folder=$1 run=$2
idle_limit=60
exec 9>>"$folder/users"

setpriv --pdeathsig KILL sh "$folder/run/etcd.sh" 9>&- &
etcd=$!
setpriv --pdeathsig KILL sh "$folder/run/kube-apiserver.sh" 9>&- &
apiserver=$!

idle=0
while kill -0 "$run" 2>/dev/null && kill -0 "$etcd" 2>/dev/null && kill -0 "$apiserver" 2>/dev/null; do
    sleep 1
    # Users hold this lock together. It stays held at the end: who comes now waits, and then finds the file gone.
    if flock --nonblock 9; then
        idle=$((idle + 1))
        [ "$idle" -ge "$idle_limit" ] && break
        flock --unlock 9
    else
        idle=0
    fi
done
kill -0 "$run" 2>/dev/null && [ "$idle" -lt "$idle_limit" ] && exit 1
kill -KILL "$etcd" "$apiserver" 2>/dev/null
wait
rm -rf "$folder"
