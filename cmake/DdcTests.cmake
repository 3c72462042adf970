# ddc_shares(<target> <name> <count> <filter>): the tests of a GoogleTest program that a filter
# names, in shares and not one by one: loading LibTorch takes longer than most of the tests. Small shares, so that no
# core waits for another at the end. The name is their label.
function(ddc_shares target name count filter)
  math(EXPR last "${count} - 1")
  foreach(share RANGE ${last})
    add_test(NAME ${name}.${share} COMMAND ${target} --gtest_brief=1 "--gtest_filter=${filter}")
    set_tests_properties(${name}.${share} PROPERTIES LABELS ${name} TIMEOUT 1800
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${count};GTEST_SHARD_INDEX=${share}")
  endforeach()
endfunction()
