# shellcheck shell=bash disable=SC2207 # the words have no blanks; older bash has no mapfile
# Completion of coretap and coretap-nats for bash. Asks the program, so that it is never stale.
_coretap() {
	local cur=$2 prev=$3 command=${COMP_WORDS[1]}
	if [ "$COMP_CWORD" -eq 1 ]; then
		COMPREPLY=($(compgen -W "$("$1" --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p')" -- "$cur"))
		return
	fi
	case $cur in
	-*)
		COMPREPLY=($(compgen -W "$("$1" "$command" --help 2>/dev/null | sed 's/^\( *\)\(--[^,]*\), \(--.*\)/\1\2\n\1\3/' | grep -o '^ *--[a-z-]*')" -- "$cur"))
		return
		;;
	esac
	case $prev in
	--since) COMPREPLY=($(compgen -W "10m 1h 1d oldest" -- "$cur")) && return ;;
	--address)
		COMPREPLY=($(compgen -W "tcp://127.0.0.1:28370 $(printf 'ipc://%s ' /run/coretap/*)" -- "$cur"))
		return
		;;
	--position | --curve-* | --creds | --tls-ca | --tls-cert | --tls-key) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
	--count | --for | --timeout | --port | --speed | --interval) return ;;
	esac
	case $command in
	tail | topics | record)
		COMPREPLY=($(compgen -W "$("${1%-nats}" topics 2>/dev/null | grep -o '^[a-z_]*\.[a-z_]*')" -- "$cur"))
		[ "$command" = record ] && [ "$COMP_CWORD" -eq 2 ] && COMPREPLY=($(compgen -f -- "$cur"))
		;;
	play | probes | keygen) COMPREPLY=($(compgen -f -- "$cur")) ;;
	esac
}
complete -o filenames -F _coretap coretap coretap-nats
